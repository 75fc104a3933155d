// Many news are one look: do it once, a moment after the first of them, and never twice at the same time.

export function soon(work: () => Promise<unknown>, afterMs = 250): { ask(): void; stop(): void } {
  let timer = 0;
  let busy = false;
  let again = false;
  let stopped = false;

  async function run(): Promise<void> {
    timer = 0;
    busy = true;
    await work().catch(() => undefined); // whoever looks keeps its own errors
    busy = false;
    if (again && !stopped) {
      again = false;
      timer = window.setTimeout(run, afterMs);
    }
  }

  return {
    ask() {
      if (stopped) return;
      if (busy) again = true;
      else if (!timer) timer = window.setTimeout(run, afterMs);
    },
    stop() {
      stopped = true;
      clearTimeout(timer);
    },
  };
}
