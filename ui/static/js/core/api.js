// Requests to /data. An answer that is not fine becomes an Error with the server's own sentence.

export class ApiError extends Error {
  constructor(message, status, body) {
    super(message);
    this.status = status;
    this.body = body;
  }
}

async function ask(path, options) {
  const response = await fetch(`/data${path}`, { credentials: "same-origin", ...options });
  if (response.status === 401) location.reload();
  if (!response.ok) {
    const body = await response.json().catch(() => ({}));
    throw new ApiError(typeof body.detail === "string" ? body.detail : `HTTP ${response.status}`, response.status, body);
  }
  return response;
}

const query = (values) => {
  const params = new URLSearchParams();
  for (const [name, value] of Object.entries(values || {})) if (value != null && value !== "") params.set(name, value);
  return params.size ? `?${params}` : "";
};

export const getJson = async (path, values) => (await ask(path + query(values))).json();
export const getBytes = async (path, values) => (await ask(path + query(values))).arrayBuffer();

const kept = new Map();
// For what rarely changes: the server answers 304 when the copy that we hold is still right.
export async function getKept(path, values) {
  const url = path + query(values);
  const held = kept.get(url);
  const response = await fetch(`/data${url}`, { credentials: "same-origin", cache: "no-store", headers: held ? { "If-None-Match": held.tag } : {} });
  if (response.status === 304 && held) return held.value;
  if (!response.ok) return (await ask(url)).json();
  const value = await response.json();
  kept.set(url, { tag: response.headers.get("etag"), value });
  return value;
}

export const send = async (method, path, body) =>
  (await ask(path, { method, headers: { "Content-Type": "application/json" }, body: body === undefined ? undefined : JSON.stringify(body) })).json();

export const link = (path, values) => `/data${path}${query(values)}`;
