"""Verifies an exported audit log with Python's standard library only, without trusting the server that wrote it.

    retinue audit export > audit.jsonl
    python3 verify_audit.py audit.jsonl [server:POSITION:HASH ...]

The hash of an entry is the SHA-256 of the entry as JSON: sorted keys, no spaces, non-ASCII characters escaped, without
`hash`, and with the hash of the previous entry as `before` (empty for the first entry of a chain). Anchors from
elsewhere, such as those in the log, are checked if you pass them. The exit code is 0 if the log is valid, else 1.
"""

import hashlib
import json
import sys


def hash_of(form):
    return hashlib.sha256(json.dumps(form, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def flaws_in(lines, kept=()):
    """Yield each error. `kept` has anchors from elsewhere: chain (empty: the server's), position, hash."""
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
            cut = False  # the next part of the export follows
            stored_hash = form.pop("hash")
            chain, position = form["chain"], form["position"]
            last, before = heads.get(chain, (0, ""))
            if position != last + 1:
                yield f"{chain or 'server'} entry {position}: it follows entry {last}"
            elif hash_of({**form, "before": before}) != stored_hash:
                yield f"{chain or 'server'} entry {position}: it or the entry before it was changed"
            heads[chain] = (position, stored_hash)
            hashes[chain, position] = stored_hash
            if chain == "" and form["kind"] == "chain-begun":
                begun.add(form["subject"])
            if chain == "" and form["kind"] == "anchored":
                anchorings.append(form)
    if cut:
        return
    for chain, position, anchored_hash in [
        *kept,
        *((each["chain"], each["position"], each["hash"]) for each in anchors),
    ]:
        if hashes.get((chain, position)) != anchored_hash:
            yield f"{chain or 'server'} entry {position}: it is missing or differs from its anchor"
    if not whole:
        return
    for form in anchorings:
        then = [each for each in anchors if each["at_ms"] == form["at_ms"]]
        others = sorted([each["chain"], each["position"], each["hash"]] for each in then if each["chain"])
        own = [each["position"] for each in then if not each["chain"]]
        if hash_of(others) != form["content"] or own != [form["position"]]:
            yield f"server entry {form['position']}: the anchors recorded in it have changed"
    for chain in sorted(begun - set(heads)):
        yield f"{chain}: the whole chain is missing"
    for chain in sorted(set(heads) - begun - {""}):
        yield f"{chain}: this chain is not recorded in the server's chain"


def main(path, *anchors):
    kept = [each.split(":") for each in anchors]
    outside = [("" if chain in ("server", "house") else chain, int(position), hash_) for chain, position, hash_ in kept]
    with open(path, encoding="utf-8") as lines:
        found = list(flaws_in(lines, outside))
    sys.stdout.write("".join(f"{each}\n" for each in found) or "the audit log is intact\n")
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
