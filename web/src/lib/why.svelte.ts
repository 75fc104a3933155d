// Why something became what it is: asked from any row, from any screen, and answered in one dialog.

class Why {
  open = $state(false);
  /** Of what; empty while nothing was named yet. */
  id = $state("");

  ask(id = ""): void {
    this.id = id;
    this.open = true;
  }

  close(): void {
    this.open = false;
  }
}

export const why = new Why();
