// The positions of the nodes of the message graph: one ring with a stable order.

export type NodeKind = "person" | "agent" | "other";

export interface GraphNode {
  /** `agent:ada`, `person:owner`, `channel:telegram`, `schedules` or `server`. */
  id: string;
  kind: NodeKind;
  name: string;
}

export interface PlacedNode extends GraphNode {
  x: number;
  y: number;
  label: { x: number; y: number; anchor: "start" | "middle" | "end"; turn: number; text: string };
}

export interface Ring {
  width: number;
  height: number;
  radius: number;
  places: PlacedNode[];
}

export const NODES_MAX = 36;
const SAMPLES = 720;
const CHAR_PX = 7;

/** The node of an address. */
export function parseNode(address: string): GraphNode {
  const [kind = "", rest = ""] = split(address);
  if (kind === "agent") return { id: `agent:${before(rest, "/")}`, kind: "agent", name: before(rest, "/") };
  if (kind === "person") return { id: address, kind: "person", name: rest };
  if (kind === "schedule" || address === "clock" || address === "schedules") return { id: "schedules", kind: "other", name: "schedules" };
  if (kind === "channel") return { id: `channel:${before(rest, ":")}`, kind: "other", name: before(rest, ":") };
  return { id: "server", kind: "other", name: "server" };
}

function split(address: string): [string, string] {
  const at = address.indexOf(":");
  return at < 0 ? [address, ""] : [address.slice(0, at), address.slice(at + 1)];
}

function before(text: string, mark: string): string {
  return text.split(mark, 1)[0] ?? text;
}

const compareNames = new Intl.Collator(undefined, { numeric: true }).compare;

/** People on the left, then agents, then the others, each sorted by name, at equal distances. */
export function layoutRing(nodes: GraphNode[], width: number): Ring {
  const order: NodeKind[] = ["person", "agent", "other"];
  const sorted = nodes.toSorted((a, b) => order.indexOf(a.kind) - order.indexOf(b.kind) || compareNames(a.name, b.name));
  const count = sorted.length;
  const roomy = width > 560;
  const crowded = count > (roomy ? 14 : 10);
  const radius = !crowded ? 22 : count <= 22 ? 17 : roomy ? 14 : 11;
  const side = roomy ? 110 : 62; // for the labels
  const above = !crowded ? 30 : roomy ? side - 16 : side + 8;
  const height = crowded ? 520 : roomy ? 430 : 400;
  const rx = Math.max(60, width / 2 - radius - side);
  const ry = Math.max(60, height / 2 - radius - above);
  const arc = computeArcLengths(rx, ry);
  const around = arc.at(-1) ?? 1;
  const step = around / Math.max(1, count);
  const people = sorted.filter((each) => each.kind === "person").length;
  const first = around / 2 - ((people || 1) - 1) * 0.5 * step; // the middle of the people is at the left
  const chars = Math.floor((side - 10) / CHAR_PX);

  const places = sorted.map((node, i) => {
    const angle = findAngle(arc, (first + i * step) % around);
    const [x, y] = [width / 2 + rx * Math.cos(angle), height / 2 + ry * Math.sin(angle)];
    const label = crowded ? placeRadialLabel(x, y, Math.atan2(Math.sin(angle) * rx, Math.cos(angle) * ry), radius) : placeLabel(x, y, angle, radius);
    return { ...node, x, y, label: { ...label, text: shorten(node.name, label.anchor === "middle" ? 16 : chars) } };
  });
  return { width, height, radius, places };
}

type Label = Omit<PlacedNode["label"], "text">;

/** With few nodes: an upright label beside, above or below the node. */
function placeLabel(x: number, y: number, angle: number, radius: number): Label {
  const [cos, sin] = [Math.cos(angle), Math.sin(angle)];
  if (Math.abs(cos) > 0.6) return { x: x + Math.sign(cos) * (radius + 8), y: y + 4, anchor: cos > 0 ? "start" : "end", turn: 0 };
  return { x, y: sin < 0 ? y - radius - 12 : y + radius + 20, anchor: "middle", turn: 0 };
}

/** With many nodes: a label that points away from the ring, so that labels do not overlap. */
function placeRadialLabel(x: number, y: number, normal: number, radius: number): Label {
  const right = Math.cos(normal) >= 0;
  const [lx, ly] = [x + Math.cos(normal) * (radius + 8), y + Math.sin(normal) * (radius + 8)];
  const turn = (normal * 180) / Math.PI + (right ? 0 : 180);
  return { x: lx, y: ly, anchor: right ? "start" : "end", turn };
}

/** Shorten a name in the middle: similar names often differ at the end. */
function shorten(text: string, lengthMax: number): string {
  if (text.length <= lengthMax) return text;
  const end = Math.floor((lengthMax - 1) / 2);
  return `${text.slice(0, lengthMax - 1 - end)}…${text.slice(text.length - end)}`;
}

/** Arc lengths along the ellipse, clockwise from the right. */
function computeArcLengths(rx: number, ry: number): number[] {
  const lengths = [0];
  for (let i = 1; i <= SAMPLES; i++) {
    const [a, b] = [((i - 1) / SAMPLES) * 2 * Math.PI, (i / SAMPLES) * 2 * Math.PI];
    lengths.push((lengths[i - 1] ?? 0) + Math.hypot(rx * (Math.cos(b) - Math.cos(a)), ry * (Math.sin(b) - Math.sin(a))));
  }
  return lengths;
}

function findAngle(lengths: number[], length: number): number {
  const i = lengths.findIndex((each) => each >= length);
  return (Math.max(0, i) / SAMPLES) * 2 * Math.PI;
}

/** A curve that bends towards the center. The curve back runs beside it. */
export function drawCurve(from: PlacedNode, to: PlacedNode, ring: Ring): string {
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
