// The address of the current screen. It holds everything needed to show the same view in another browser.

/** Routes of earlier versions, by their first parts. The rest of the path is kept. */
const OLD_ROUTES: Readonly<Record<string, string>> = {
  "/doors": "/channels",
  "/doors/aside": "/channels/unprocessed",
  "/doors/bindings": "/channels/routing",
  "/doors/people": "/channels/identities",
  "/house": "/settings",
  "/house/settings": "/settings/configuration",
  "/house/settings/staff": "/settings/configuration/apply",
  "/live": "/activity",
  "/live/dead": "/activity/failed",
  "/live/handed": "/activity/delegated",
  "/money": "/usage",
};

/** The path that replaces one of an earlier version, or null for a current path. The longest old route decides. */
export function findNewPath(path: string): string | null {
  const old = Object.keys(OLD_ROUTES)
    .filter((each) => path === each || path.startsWith(`${each}/`))
    .reduce((longest, each) => (each.length > longest.length ? each : longest), "");
  return old ? OLD_ROUTES[old] + path.slice(old.length) : null;
}

export class Router {
  path: string = $state("");
  query: string = $state("");
  /** Called before the page is left. A guard that returns false makes the browser ask for confirmation. */
  #guards = new Set<() => boolean>();

  constructor() {
    this.#readLocation();
    addEventListener("popstate", () => this.#readLocation());
    addEventListener("beforeunload", (event) => {
      if ([...this.#guards].some((mayLeave) => !mayLeave())) event.preventDefault();
    });
  }

  /** The decoded parts of the path: `/chat/abc` is `["chat", "abc"]`. */
  get parts(): string[] {
    return this.path
      .split("/")
      .filter(Boolean)
      .map((part) => {
        try {
          return decodeURIComponent(part);
        } catch {
          return part;
        }
      });
  }

  get search(): URLSearchParams {
    return new URLSearchParams(this.query);
  }

  go(to: string, { replace = false }: { replace?: boolean } = {}): void {
    if (to === location.pathname + location.search) return;
    history[replace ? "replaceState" : "pushState"](null, "", to);
    this.#readLocation();
  }

  /** Protect unsaved input while the page is being left. Returns a function that removes the guard. */
  guard(mayLeave: () => boolean): () => void {
    this.#guards.add(mayLeave);
    return () => this.#guards.delete(mayLeave);
  }

  #readLocation(): void {
    const moved = findNewPath(location.pathname);
    // The hash stays: it may hold a sign-in code that was not read yet.
    if (moved !== null) history.replaceState(null, "", moved + location.search + location.hash);
    this.path = location.pathname;
    this.query = location.search;
  }
}

export const router = new Router();

/** Action for links: navigate without loading the page, unless a modifier key asks for a new tab or window. */
export function link(node: HTMLAnchorElement): { destroy(): void } {
  const follow = (event: MouseEvent): void => {
    if (event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    event.preventDefault();
    router.go(node.pathname + node.search);
  };
  node.addEventListener("click", follow);
  return { destroy: () => node.removeEventListener("click", follow) };
}

/** Build a path from its parts. */
export function path(...parts: string[]): string {
  return "/" + parts.map(encodeURIComponent).join("/");
}
