"""The one page that the house itself serves: it exchanges the code in its address for a cookie, and says who one is."""

from __future__ import annotations

import base64
import hashlib

# The code stands behind the #, which no browser sends anywhere; the page posts it and takes it out of the address.
_SCRIPT = """
const say = (words) => { document.querySelector("p").textContent = words; };
const ask = (path, body) => fetch(path, {
  method: "POST", credentials: "same-origin", body: JSON.stringify(body),
  headers: { "content-type": "application/json", "x-retinue": "1" },
});
const code = new URLSearchParams(location.hash.slice(1)).get("code");
history.replaceState(null, "", location.pathname);
(async () => {
  const answer = code ? await ask("/api/sign-in", { code }) : await ask("/api/house/status", {});
  const told = await answer.json();
  say(answer.ok ? `You are signed in as ${told.you}.`
    : `${told.error.sentence}: ${told.error.because}. Try: ${told.error.try}.`);
})().catch(() => say("The house does not answer."));
"""

SCRIPT_HASH = base64.b64encode(hashlib.sha256(_SCRIPT.encode()).digest()).decode()
SIGN_IN = (
    '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>retinue</title></head>'
    f"<body><h1>retinue</h1><p>One moment.</p><script>{_SCRIPT}</script></body></html>"
).encode()
