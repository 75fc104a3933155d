// Where everyone stands in the picture: one ring, the same place for the same house, whatever happens in it.

export type NodeKind = "person" | "agent" | "door";

export interface Who {
  /** An address without what lies behind its name: `agent:ada`, `person:owner`, `channel:telegram`, `clock`, `house`. */
  id: string;
  kind: NodeKind;
  name: string;
}

export interface Place extends Who {
  x: number;
  y: number;
  label: { x: number; y: number; anchor: "start" | "middle" | "end"; turn: number; text: string };
}

export interface Ring {
  width: number;
  height: number;
  radius: number;
  places: Place[];
}

export const NODES_MAX = 36;
const SAMPLES = 720;
const CHAR_PX = 7;

/** Whom an address means in the picture. */
export function whoIs(address: string): Who {
  const [kind = "", rest = ""] = split(address);
  if (kind === "agent") return { id: `agent:${before(rest, "/")}`, kind: "agent", name: before(rest, "/") };
  if (kind === "person") return { id: address, kind: "person", name: rest };
  if (kind === "schedule" || address === "clock") return { id: "clock", kind: "door", name: "clock" };
  if (kind === "channel") return { id: `channel:${before(rest, ":")}`, kind: "door", name: before(rest, ":") };
  return { id: "house", kind: "door", name: "house" };
}

function split(address: string): [string, string] {
  const at = address.indexOf(":");
  return at < 0 ? [address, ""] : [address.slice(0, at), address.slice(at + 1)];
}

function before(text: string, mark: string): string {
  return text.split(mark, 1)[0] ?? text;
}

const byName = new Intl.Collator(undefined, { numeric: true }).compare;

/** People to the left, then agents, then doors, each by name, with the same space between any two. */
export function ringOf(everyone: Who[], width: number): Ring {
  const order: NodeKind[] = ["person", "agent", "door"];
  const sorted = everyone.toSorted((a, b) => order.indexOf(a.kind) - order.indexOf(b.kind) || byName(a.name, b.name));
  const count = sorted.length;
  const roomy = width > 560;
  const crowded = count > (roomy ? 14 : 10);
  const radius = !crowded ? 22 : count <= 22 ? 17 : roomy ? 14 : 11;
  const side = roomy ? 110 : 62; // for the labels
  const above = !crowded ? 30 : roomy ? side - 16 : side + 8;
  const height = crowded ? 520 : roomy ? 430 : 400;
  const rx = Math.max(60, width / 2 - radius - side);
  const ry = Math.max(60, height / 2 - radius - above);
  const arc = lengths(rx, ry);
  const around = arc.at(-1) ?? 1;
  const step = around / Math.max(1, count);
  const people = sorted.filter((each) => each.kind === "person").length;
  const first = around / 2 - ((people || 1) - 1) * 0.5 * step; // the middle of the people is at the left
  const chars = Math.floor((side - 10) / CHAR_PX);

  const places = sorted.map((who, i) => {
    const angle = angleAt(arc, (first + i * step) % around);
    const [x, y] = [width / 2 + rx * Math.cos(angle), height / 2 + ry * Math.sin(angle)];
    const label = crowded ? outwards(x, y, Math.atan2(Math.sin(angle) * rx, Math.cos(angle) * ry), radius) : beside(x, y, angle, radius);
    return { ...who, x, y, label: { ...label, text: cut(who.name, label.anchor === "middle" ? 16 : chars) } };
  });
  return { width, height, radius, places };
}

type Label = Omit<Place["label"], "text">;

/** Few: upright, beside the node or above it. */
function beside(x: number, y: number, angle: number, radius: number): Label {
  const [cos, sin] = [Math.cos(angle), Math.sin(angle)];
  if (Math.abs(cos) > 0.6) return { x: x + Math.sign(cos) * (radius + 8), y: y + 4, anchor: cos > 0 ? "start" : "end", turn: 0 };
  return { x, y: sin < 0 ? y - radius - 12 : y + radius + 20, anchor: "middle", turn: 0 };
}

/** Many: away from the ring, each along its own ray, so that no two meet. */
function outwards(x: number, y: number, normal: number, radius: number): Label {
  const right = Math.cos(normal) >= 0;
  const [lx, ly] = [x + Math.cos(normal) * (radius + 8), y + Math.sin(normal) * (radius + 8)];
  const turn = (normal * 180) / Math.PI + (right ? 0 : 180);
  return { x: lx, y: ly, anchor: right ? "start" : "end", turn };
}

/** The middle goes: names of a kind often begin alike and end apart. */
function cut(text: string, most: number): string {
  if (text.length <= most) return text;
  const end = Math.floor((most - 1) / 2);
  return `${text.slice(0, most - 1 - end)}…${text.slice(text.length - end)}`;
}

/** How far it is along the ellipse, from the right and clockwise. */
function lengths(rx: number, ry: number): number[] {
  const along = [0];
  for (let i = 1; i <= SAMPLES; i++) {
    const [a, b] = [((i - 1) / SAMPLES) * 2 * Math.PI, (i / SAMPLES) * 2 * Math.PI];
    along.push((along[i - 1] ?? 0) + Math.hypot(rx * (Math.cos(b) - Math.cos(a)), ry * (Math.sin(b) - Math.sin(a))));
  }
  return along;
}

function angleAt(along: number[], length: number): number {
  const i = along.findIndex((each) => each >= length);
  return (Math.max(0, i) / SAMPLES) * 2 * Math.PI;
}

/** A curve that leans to the middle, and beside the one that leads back. */
export function curve(from: Place, to: Place, ring: Ring): string {
  const [mx, my] = [(from.x + to.x) / 2, (from.y + to.y) / 2];
  const [cx, cy] = [ring.width / 2, ring.height / 2];
  const [dx, dy] = [to.x - from.x, to.y - from.y];
  const far = Math.hypot(dx, dy) || 1;
  const lean = 0.35;
  const aside = Math.min(26, far / 6);
  const x = mx + (cx - mx) * lean - (dy / far) * aside;
  const y = my + (cy - my) * lean + (dx / far) * aside;
  return `M${from.x.toFixed(1)} ${from.y.toFixed(1)}Q${x.toFixed(1)} ${y.toFixed(1)} ${to.x.toFixed(1)} ${to.y.toFixed(1)}`;
}
