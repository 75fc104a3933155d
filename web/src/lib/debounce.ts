// Run work once for a burst of triggers: shortly after the first of them, and never twice at the same time.

export function debounce(work: () => Promise<unknown>, afterMs = 250): { trigger(): void; stop(): void } {
  let timer = 0;
  let busy = false;
  let again = false;
  let stopped = false;

  async function run(): Promise<void> {
    timer = 0;
    busy = true;
    await work().catch(() => undefined); // callers handle their own errors
    busy = false;
    if (again && !stopped) {
      again = false;
      timer = window.setTimeout(run, afterMs);
    }
  }

  return {
    trigger() {
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
