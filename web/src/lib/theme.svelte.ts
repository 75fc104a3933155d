// Dark or light: as the machine says, or as the person says.

export type Theme = "system" | "light" | "dark";
const THEMES: Theme[] = ["system", "light", "dark"];
const KEPT = "retinue.theme";

class Themes {
  now: Theme = $state(read());

  constructor() {
    this.#show();
  }

  set(theme: Theme): void {
    this.now = theme;
    try {
      localStorage.setItem(KEPT, theme);
    } catch {
      // a browser that keeps nothing: good until the page is closed
    }
    this.#show();
  }

  next(): void {
    this.set(THEMES[(THEMES.indexOf(this.now) + 1) % THEMES.length] ?? "system");
  }

  #show(): void {
    if (this.now === "system") delete document.documentElement.dataset["theme"];
    else document.documentElement.dataset["theme"] = this.now;
  }
}

function read(): Theme {
  try {
    const kept = localStorage.getItem(KEPT) as Theme | null;
    return kept !== null && THEMES.includes(kept) ? kept : "system";
  } catch {
    return "system";
  }
}

export const themes = new Themes();
