// A heart-beat that is fast while something runs, slow otherwise, silent while nobody looks, and says when it fails.

const FAST_MS = 1500;
const SLOW_MS = 15000;

export class Poll {
  // `beat` does one round and resolves to true when a run on screen is still running.
  constructor(beat, show) {
    this.beat = beat;
    this.show = show;
    this.failures = 0;
    this.timer = 0;
    this.busy = false;
    document.addEventListener("visibilitychange", () => (document.hidden ? clearTimeout(this.timer) : this.now()));
  }

  stop() {
    clearTimeout(this.timer);
    this.stopped = true;
  }

  async now() {
    clearTimeout(this.timer);
    if (this.busy || this.stopped) return;
    this.busy = true;
    let wait = SLOW_MS;
    try {
      const running = await this.beat();
      this.failures = 0;
      wait = running ? FAST_MS : SLOW_MS;
      this.show({ ok: true, running });
    } catch (error) {
      this.failures++;
      wait = Math.min(15000, 1000 * 2 ** Math.min(4, this.failures));
      this.show({ ok: false, error, retry: wait });
    }
    this.busy = false;
    if (!document.hidden && !this.stopped) this.timer = setTimeout(() => this.now(), wait);
  }
}
