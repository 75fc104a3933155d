// Where one is: the path of the page, and nothing else. Anyone can send someone else the address of what they look at.

export class Router {
  path: string = $state(location.pathname);
  query: string = $state(location.search);
  /** Asked before one leaves; false keeps one here. */
  #guards = new Set<() => boolean>();

  constructor() {
    addEventListener("popstate", () => this.#look());
    addEventListener("beforeunload", (event) => {
      if ([...this.#guards].some((may) => !may())) event.preventDefault();
    });
  }

  /** The parts of the path: `/chat/abc` is `["chat", "abc"]`. */
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
    this.#look();
  }

  /** Keep a person from losing what they typed when they close the page. */
  guard(may: () => boolean): () => void {
    this.#guards.add(may);
    return () => this.#guards.delete(may);
  }

  #look(): void {
    this.path = location.pathname;
    this.query = location.search;
  }
}

export const router = new Router();

/** For links: stay on the page where the click means just that. */
export function link(node: HTMLAnchorElement): { destroy(): void } {
  const follow = (event: MouseEvent): void => {
    if (event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    event.preventDefault();
    router.go(node.pathname + node.search);
  };
  node.addEventListener("click", follow);
  return { destroy: () => node.removeEventListener("click", follow) };
}

/** A path from its parts. */
export function path(...parts: string[]): string {
  return "/" + parts.map(encodeURIComponent).join("/");
}
