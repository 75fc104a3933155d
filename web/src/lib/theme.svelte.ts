// Dark or light: as the operating system is set, or as the person chose.

export type ThemeName = "system" | "light" | "dark";
const THEMES: ThemeName[] = ["system", "light", "dark"];
const STORAGE_KEY = "retinue.theme";

class Theme {
  current: ThemeName = $state(load());

  constructor() {
    this.#apply();
  }

  set(name: ThemeName): void {
    this.current = name;
    try {
      localStorage.setItem(STORAGE_KEY, name);
    } catch {
      // the browser has no local storage: the choice lasts until the page is closed
    }
    this.#apply();
  }

  next(): void {
    this.set(THEMES[(THEMES.indexOf(this.current) + 1) % THEMES.length] ?? "system");
  }

  #apply(): void {
    if (this.current === "system") delete document.documentElement.dataset["theme"];
    else document.documentElement.dataset["theme"] = this.current;
  }
}

function load(): ThemeName {
  try {
    const stored = localStorage.getItem(STORAGE_KEY) as ThemeName | null;
    return stored !== null && THEMES.includes(stored) ? stored : "system";
  } catch {
    return "system";
  }
}

export const theme = new Theme();
