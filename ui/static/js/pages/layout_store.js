// Layouts on the server. A save names the version it started from; a newer one there is a conflict, never overwritten.

import { ApiError, getJson, send } from "../core/api.js";
import { say } from "../parts/toast.js";
import { repaired, starter } from "./layout.js";

const copy = (value) => JSON.parse(JSON.stringify(value));

export class LayoutStore {
  constructor(name, changed) {
    this.name = name;
    this.changed = changed;
    this.version = null;
    this.layout = { sections: [] };
    this.queue = Promise.resolve();
  }

  path(more = "") {
    return `/layouts/${encodeURIComponent(this.name)}${more}`;
  }

  async load(byKey) {
    if (this.version != null) return;
    this.byKey = byKey;
    this.accept(await getJson(this.path()));
  }

  async open(name) {
    this.name = name;
    this.version = null;
    await this.load(this.byKey);
    this.changed();
  }

  accept(found) {
    this.version = found.version;
    this.isStarter = !found.layout;
    this.layout = found.layout ? repaired(found.layout) : starter(this.byKey);
    this.canUndo = Boolean(found.can_undo);
    this.canRedo = Boolean(found.can_redo);
    document.documentElement.dataset.layoutVersion = String(found.version);
    this.onState?.();
  }

  // Saves follow each other, so that each names the version that the one before it made.
  save() {
    this.queue = this.queue.then(() => this.put(copy(this.layout)));
    return this.queue;
  }

  async put(layout) {
    try {
      const found = await send("PUT", this.path(), { version: this.version, layout });
      Object.assign(this, { version: found.version, isStarter: false, canUndo: found.can_undo, canRedo: found.can_redo });
      document.documentElement.dataset.layoutVersion = String(found.version);
      this.onState?.();
    } catch (error) {
      if (!(error instanceof ApiError) || error.status !== 409) return say(`Layout not saved: ${error.message}`, { label: "Try again", run: () => this.save() });
      this.accept(error.body);
      this.changed();
      say("This layout was changed in another browser; that version is shown", { label: "Use mine", run: () => this.replace(layout) });
    }
  }

  replace(layout) {
    this.layout = repaired(layout);
    this.changed();
    return this.save();
  }

  async step(move) {
    try {
      this.accept(await send("POST", this.path(`/${move}`)));
      this.changed();
    } catch (error) {
      say(error.message);
    }
  }

  // Someone else may have changed it meanwhile.
  async check() {
    if (this.version == null) return;
    const found = await getJson(this.path());
    if (found.version <= this.version) return;
    this.accept(found);
    this.changed();
    say("This layout was changed in another browser");
  }
}
