// The dialog that explains what happened to an envelope, run, approval or session. Any screen can open it.

class Explanation {
  open = $state(false);
  /** The id to explain. Empty: the person types one in the dialog. */
  id = $state("");

  show(id = ""): void {
    this.id = id;
    this.open = true;
  }

  close(): void {
    this.open = false;
  }
}

export const explanation = new Explanation();
