"""Checks an exported audit, with nothing but Python's standard library, and without trusting the house it came from.

    retinue audit export > audit.jsonl
    python3 verify_audit.py audit.jsonl [house:POSITION:HASH ...]

Each line's hash is the SHA-256 of the line as JSON, with its keys in order, no blanks, everything but ASCII escaped,
without `hash` and with the hash of the line before it (empty for the first of a chain) as `before`. Anchors that you
kept elsewhere, such as those in the log, are checked when you name them. Ends with 0 if all of it holds, else with 1.
"""

import hashlib
import json
import sys


def hash_of(form):
    return hashlib.sha256(json.dumps(form, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def flaws_in(lines, kept=()):
    """Everything that is wrong, in words. `kept` are anchors from elsewhere: chain (empty: house), position, hash."""
    heads, hashes, begun, anchorings, anchors, whole, cut = {}, {}, set(), [], [], False, False
    for line in lines:
        form = json.loads(line)
        if "export" in form:
            whole = form["export"]["chain"] is None
        elif "cut" in form:
            cut = True
        elif "anchor" in form:
            anchors.append(form["anchor"])
        else:
            cut = False  # parts that follow each other are one whole
            said = form.pop("hash")
            chain, position = form["chain"], form["position"]
            last, before = heads.get(chain, (0, ""))
            if position != last + 1:
                yield f"{chain or 'house'} line {position}: it comes after line {last}"
            elif hash_of({**form, "before": before}) != said:
                yield f"{chain or 'house'} line {position}: it is not as it was written, or the line before it is not"
            heads[chain] = (position, said)
            hashes[chain, position] = said
            if chain == "" and form["kind"] == "chain-begun":
                begun.add(form["subject"])
            if chain == "" and form["kind"] == "anchored":
                anchorings.append(form)
    if cut:
        return
    for chain, position, said in [*kept, *((each["chain"], each["position"], each["hash"]) for each in anchors)]:
        if hashes.get((chain, position)) != said:
            yield f"{chain or 'house'} line {position}: it is not the one that was anchored, or is missing"
    if not whole:
        return
    for form in anchorings:
        then = [each for each in anchors if each["at_ms"] == form["at_ms"]]
        others = sorted([each["chain"], each["position"], each["hash"]] for each in then if each["chain"])
        own = [each["position"] for each in then if not each["chain"]]
        if hash_of(others) != form["content"] or own != [form["position"]]:
            yield f"house line {form['position']}: the anchors that were taken with it are not as they were"
    for chain in sorted(begun - set(heads)):
        yield f"{chain}: the whole chain is missing"
    for chain in sorted(set(heads) - begun - {""}):
        yield f"{chain}: the house's own chain does not know of it"


def main(path, *anchors):
    kept = [each.split(":") for each in anchors]
    outside = [("" if chain == "house" else chain, int(position), said) for chain, position, said in kept]
    with open(path, encoding="utf-8") as lines:
        found = list(flaws_in(lines, outside))
    sys.stdout.write("".join(f"{each}\n" for each in found) or "it holds\n")
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
