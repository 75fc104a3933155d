"""The offline guide: a scripted model, so that every part of the server can be tried without a key or network.

It looks up what it has read since its last reply in a table of scripts, and plays the matching
script. The same prompt always gives the same reply.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from functools import reduce
from itertools import islice, takewhile
from typing import Any

from msgspec import Struct

from retinue.domain.model import FREE_PRICE, ModelFacts, ModelRef
from retinue.domain.ports import Clock
from retinue.domain.record import NO_USAGE, Note, Record, RecordKind, StopReason, UserTurn
from retinue.domain.structs import replace
from retinue.domain.tool import Call, ToolResult, ToolSpec
from retinue.models.base import EndChunk, ModelPrompt, ReplyChunk, TextChunk, ThinkingChunk, ToolCallChunk
from retinue.models.errors import GuideAskedToFail

PAUSE_S = 0.03
COUNT_MAX = 1000
SLOW_S_MAX = 600.0
CALLS_MAX = 10
PIECES_MAX = 2000
RECALLED_TEXTS_MAX = 5
SHOWN_CHARS_MAX = 2000

_NO_REPLY = "NO_REPLY"  # a reply of only this is recorded and not sent


class GuideScript(Struct, frozen=True, kw_only=True):
    """The script for one reply of the guide: a delay, thinking, text, an error and tool calls, in this order.

    A script without text and calls produces the reply `NO_REPLY`, which is not sent.
    """

    delay_s: float = 0.0
    thinking: str = ""
    text: str = ""
    should_fail: bool = False
    calls: tuple[Call, ...] = ()
    pace: float = 1.0

    def append(self, other: GuideScript) -> GuideScript:
        return GuideScript(
            delay_s=self.delay_s + other.delay_s,
            thinking="\n\n".join(filter(None, (self.thinking, other.thinking))),
            text="\n\n".join(filter(None, (self.text, other.text))),
            should_fail=self.should_fail or other.should_fail,
            calls=self.calls + other.calls,
            pace=max(self.pace, other.pace),
        )


class OfflineGuide(Struct, frozen=True):
    """The guide as a model: plays the script that matches the prompt, word by word, at the script's pace."""

    clock: Clock
    pause_s: float = PAUSE_S
    name: str = "guide"

    @property
    def facts(self) -> ModelFacts:
        return ModelFacts(ref=ModelRef("", self.name), price=FREE_PRICE)

    async def reply(self, prompt: ModelPrompt, *, key: str = "") -> AsyncIterator[ReplyChunk]:
        script = build_script(prompt)
        if script.delay_s:
            await self.clock.sleep(script.delay_s)
        for piece in split_pieces(script.thinking):
            yield ThinkingChunk(piece)
            await self.clock.sleep(self.pause_s)
        for piece in split_pieces(script.text or ("" if script.calls else _NO_REPLY)):
            yield TextChunk(piece)
            await self.clock.sleep(self.pause_s * script.pace)
        if script.should_fail:
            raise GuideAskedToFail
        for number, call in enumerate(script.calls, start=1):
            yield ToolCallChunk(replace(call, id=f"call-{number}"))
        yield EndChunk(StopReason.CALLS if script.calls else StopReason.END, NO_USAGE)


def split_pieces(text: str) -> list[str]:
    """Split text into pieces of one word and its trailing space. The pieces of very long text have several words."""
    words = re.findall(r"\S+\s*|\s+", text)
    together = -(-len(words) // PIECES_MAX) or 1
    return ["".join(words[i : i + together]) for i in range(0, len(words), together)]


def build_script(prompt: ModelPrompt) -> GuideScript:
    """Build one script that answers, in order, everything that this run has read since the last reply."""
    scripts = (script for record in _list_unanswered(prompt.records) for script in _build_scripts(record, prompt))
    return reduce(GuideScript.append, scripts, GuideScript())


def _list_unanswered(records: Sequence[Record]) -> list[Record]:
    # From the end, so that the cost depends on the run, not on the history before it.
    run = records[-1].run if records else None
    return list(takewhile(lambda r: r.run == run and r.kind is not RecordKind.ASSISTANT, reversed(records)))[::-1]


def _build_scripts(record: Record, prompt: ModelPrompt) -> Iterator[GuideScript]:
    match record.body:
        case UserTurn(text=text):
            yield from (answer_request(request, prompt) for request in split_envelope_texts(text))
        case ToolResult() as result:
            yield GuideScript(text=describe_result(result))
        case Note(text=text, call=call) if call:
            yield GuideScript(text=_shorten(text))
        case _:
            return


def describe_result(result: ToolResult) -> str:
    """Describe the result of a tool call as text.

    If the call is waiting, was refused or was interrupted, the text says so, so that the call does not look done.
    """
    tool, output = f"`{result.tool}`", result.output.strip()
    if not result.failed:
        return f"{tool} returned:\n{_shorten(output)}" if output else f"{tool} returned nothing."
    if waits := re.match(r"Waiting for approval (\w+)", output):
        return (
            f"{tool} is not done yet: it is waiting for approval {waits[1]}. "
            "I continue without it until a person decides."
        )
    if refused := re.match(r"Not done: the approval (\w+) is (\w+)", output):
        return f"{tool} was not done: approval {refused[1]} is {refused[2]}."
    if output.startswith("Interrupted:"):
        return f"{tool} was interrupted, and may or may not have taken effect. I do not repeat it: please check first."
    return f"{tool} failed: {_shorten(output)}"


_TURN_SEPARATOR = re.compile(
    r"^---$", re.MULTILINE
)  # senders cannot write this or the tags: `runners/turn_input` escapes them
_CONTEXT_TAGS = re.compile(r'\A(?:<context [^\n]*\n|<system_message origin="[^"]*">)|</system_message>\Z')
_COURTESY = re.compile(r"(?:(?:please|kindly|guide|(?:can|could|would|will)\s+you)\b[\s,:]*)*", re.IGNORECASE)
_GREETING = r"(?:hello|hi|hiya|hey|howdy|greetings|good (?:morning|day|afternoon|evening))(?: there| guide| all)?"
_GREETING_PREFIX = re.compile(r"(?:" + _GREETING.replace(" ", r"\s+") + r"\b[\s,.:;!?-]*)+", re.IGNORECASE)


def split_envelope_texts(turn: str) -> list[str]:
    """Return the text of each envelope in a turn, oldest first.

    A turn that is not in the format of the server is returned as one item.
    """
    head, *blocks = _TURN_SEPARATOR.split(turn)
    bodies = [block.strip("\n").partition("\n\n")[2] for block in blocks[:-1]]
    found = [body for body in bodies if body and head.startswith("## Turn Context")] or [turn]
    return [_CONTEXT_TAGS.sub("", body.partition("\n\nattachments:\n")[0].strip()).strip() for body in found]


def answer_request(text: str, prompt: ModelPrompt) -> GuideScript:
    """Answer with the first ability that matches the request."""
    for request in _iterate_request_variants(text):
        for ability in ABILITIES:
            if (rest := ability.match(request)) is not None:
                return (
                    GuideScript(text=ability.action)
                    if isinstance(ability.action, str)
                    else ability.action(rest, prompt)
                )
    return answer_unknown(text)


def _iterate_request_variants(text: str) -> Iterator[str]:
    """Yield the request unchanged, so that a command keeps its meaning. Then yield it without its greeting."""
    request = _COURTESY.sub("", text, count=1)
    yield request
    if greeted := _GREETING_PREFIX.match(request):
        yield _COURTESY.sub("", request[greeted.end() :], count=1) or "hello"


# The actions of the table: a string, or a pure function of the text after the command and of the prompt.

I_AM = "I am the offline guide: a script that comes with retinue, not a language model."
TRY_THIS = (
    "Try `count to 20` (an answer, word by word), `status` (a tool call) or `how does it work`. `help` lists "
    "everything that I understand."
)
ADD_A_KEY = (
    "To talk to a real model, give the server a key: run `retinue credential add anthropic mine --key-file PATH` "
    "(`openai` and `google` work too), or start the server with `ANTHROPIC_API_KEY`, `OPENAI_API_KEY` or "
    "`GOOGLE_API_KEY` set. Then write to `main`: `retinue chat --agent main`."
)
A_REAL_MODEL = (
    f"{ADD_A_KEY} In the web app: Settings, Models, Add key. Any server with an OpenAI-compatible API works too: add "
    "it to `retinue.toml`, as docs/guides/choose-models.md shows. `retinue models` lists which model each agent uses. "
    "I remain a script."
)
HELLO = f"Hello! {I_AM} The server around me is real.\n\n{TRY_THIS}\n\n{ADD_A_KEY}"
WHO_I_AM = (
    f"{I_AM} I need no key and no network: my answers were written in advance, and I answer a fixed list of commands. "
    f"The server around me is real.\n\n{TRY_THIS}\n\n{ADD_A_KEY}"
)
WHAT_I_DO = (
    f"{I_AM} I answer a fixed list of commands, so that you can see what the server does: long answers, tool calls, "
    f"calls that wait for your approval, failures and restarts.\n\n{TRY_THIS}\n\n{ADD_A_KEY}"
)
WHAT_THIS_IS = (
    "This is retinue, a server for a team of AI agents. You write to an agent; each message is stored before it is "
    f"accepted, and each step before it is performed, so a restart loses nothing. {I_AM}\n\n{TRY_THIS}\n\n{ADD_A_KEY}"
)
FIRST_STEPS = (
    f"{I_AM} Three first steps:\n\n"
    "1. See what the server does: write `count to 20`, `status` or `how does it work`.\n"
    f"2. {ADD_A_KEY}\n"
    "3. Create your own agent: `retinue agent register ada`, then `retinue chat --agent ada`.\n\n"
    "docs/start.md describes the first ten minutes."
)
HOW_IT_WORKS = (
    "Your message is stored before the server accepts it. An agent works through its messages in runs, and each step "
    "is stored before it is performed. Try it: write `count to 100`, kill the server in the middle and start it again; "
    "you get your answer, once. A tool call that must not be repeated is not repeated; I tell you that it was "
    "interrupted. If an agent is not allowed to do something alone, it asks a person first, and the question survives "
    "a restart too."
)


def show_help(_rest: str, _prompt: ModelPrompt) -> GuideScript:
    lines = (f"- `{ability.example}`: {ability.description}" for ability in ABILITIES if ability.example)
    return GuideScript(text="\n".join((f"{I_AM} This is what I understand:", *lines, "", ADD_A_KEY)))


def answer_unknown(text: str) -> GuideScript:
    request = _shorten(" ".join(text[:200].split()), 60)
    start = (
        f"I do not know how to answer “{request}”." if request and request != "(none)" else "Your message has no text."
    )
    then = "Try `count to 20`, `status` or `how does it work`; `help` lists the rest."
    return GuideScript(text=f"{start} {I_AM} {then} To get real answers, write `connect a real model`.")


def count(rest: str, _prompt: ModelPrompt) -> GuideScript:
    wanted = int(float(rest[:9] or "20"))
    end = "Done." if wanted <= COUNT_MAX else f"I stop here: I count to {COUNT_MAX} at most."
    numbers = map(str, range(1, min(wanted, COUNT_MAX) + 1))
    return GuideScript(text=" ".join((*numbers, end)), pace=5.0)  # slowly, so that it can be interrupted


def be_slow(rest: str, _prompt: ModelPrompt) -> GuideScript:
    after_s = min(float(rest[:9] or "10"), SLOW_S_MAX)
    limit = ", which is the maximum" if after_s == SLOW_S_MAX else ""
    return GuideScript(delay_s=after_s, text=f"I waited {after_s:g} seconds before this answer{limit}.")


def think(rest: str, _prompt: ModelPrompt) -> GuideScript:
    about = _shorten(rest, 200) or "nothing in particular"
    thinking = f"You asked me to think about {about}. I am a script, so these thoughts were written before you asked."
    return GuideScript(thinking=thinking, text=f"I thought about {about}. My thoughts are separate from this answer.")


def remember(rest: str, prompt: ModelPrompt) -> GuideScript:
    if rest:
        return GuideScript(text="It is stored in this session. To see it again, write: `what did I say?`")
    earlier = islice(reversed(prompt.records), len(_list_unanswered(prompt.records)), None)
    texts = (
        each for r in earlier if isinstance(r.body, UserTurn) for each in reversed(split_envelope_texts(r.body.text))
    )
    lines = [f"- {_shorten(' '.join(each.split()), 100)}" for each in islice(texts, RECALLED_TEXTS_MAX)][::-1]
    start = "Your earlier messages:" if lines else "There are no earlier messages in this context."
    return GuideScript(text="\n".join((start, *lines)))


def list_tools(_rest: str, prompt: ModelPrompt) -> GuideScript:
    lines = [f"- `{tool.name}`: {tool.description}" for tool in prompt.tools]
    return GuideScript(text="\n".join(("I can use these tools:", *lines)) if lines else "I have no tools here.")


def call_tools(rest: str, prompt: ModelPrompt) -> GuideScript:
    try:
        calls = parse_calls(rest, prompt.tools)
    except (ValueError, RecursionError):
        return GuideScript(text='I cannot read the arguments. Write them like this: `call read {"path": "SOUL.md"}`.')
    return GuideScript(text=f"I call {' and '.join(f'`{call.tool}`' for call in calls)}.", calls=tuple(calls))


def call_with_approval(rest: str, prompt: ModelPrompt) -> GuideScript:
    script = call_tools(rest or "read SOUL.md", prompt)
    whether = (
        "If this agent's rules say `ask`, a person must approve it first; if they say `allow`, it is done at once."
    )
    return replace(script, text=f"{script.text} {whether}") if script.calls else script


_TOOL_NAME = re.compile(r"(?:[\s,;]|(?:and|then|call)\b)*([\w.-]{1,64})[ \t]*", re.IGNORECASE)
_CALL_SEPARATOR = re.compile(r"[,;\n]|(?:and|then)\b|$", re.IGNORECASE)


def parse_calls(text: str, tools: Sequence[ToolSpec]) -> list[Call]:
    """Parse a request such as `a {...}; b plain words; c and d` into tool calls.

    Raises `ValueError` if that is not possible.
    """
    needed = {tool.name: tool.parameters.get("required", []) for tool in tools}
    calls: list[Call] = []
    at = 0
    while len(calls) < CALLS_MAX and (named := _TOOL_NAME.match(text, at)):
        tool, at = named[1], named.end()
        arguments: dict[str, Any] = {}
        if text.startswith("{", at):
            arguments, at = json.JSONDecoder().raw_decode(text, at)
            json.dumps(arguments, ensure_ascii=False, allow_nan=False).encode()  # rejects NaN and lone surrogates
        elif not _CALL_SEPARATOR.match(text, at):
            value = re.split(r"[;\n]", text[at:], maxsplit=1)[0]
            at += len(value)
            if len(names := needed.get(tool, [])) == 1:  # plain words are the value of the only required parameter
                arguments = {names[0]: value.strip()}
        calls.append(Call(id="", tool=tool, arguments=arguments))
    if not calls:
        raise ValueError("no tool name")
    return calls


def _shorten(text: str, chars_max: int = SHOWN_CHARS_MAX) -> str:
    return text if len(text) <= chars_max else f"{text[:chars_max]}…"


class GuideAbility(Struct, frozen=True):
    """One thing that the guide can do: a pattern, the action for it and its entry in the help.

    Without an example, the ability is not listed in the help.
    """

    pattern: str
    action: str | Callable[[str, ModelPrompt], GuideScript]
    example: str = ""
    description: str = ""

    def match(self, text: str) -> str | None:
        """Return the text after the command, or None if it does not match.

        Spaces, case and a final `please` are ignored.
        """
        asked = self.pattern.replace(" ", r"\s+")
        found = re.fullmatch(rf"(?:{asked})(?:[\s,]+please)?[\s.!?]*", text, re.IGNORECASE | re.DOTALL)
        return (found.groupdict().get("rest") or "").strip() if found else None


# Before `[\s.!?]*`, a repeated part must not match these signs too: long inputs would take quadratic time.
_N = r"(?: (?P<rest>\d+(?:\.\d+)?))?"
_REST = "(?: (?P<rest>.+))?"
_S = "(?: is|['\u2019]?s)"
_DO = "(?:do|can|could|should|would|must)"
_TAIL = "(?:,? (?:here|now|today|then|first|next|exactly|actually|anyway|about|for me|with (?:this|you|it|retinue)))*"


def build_phrase_pattern(*phrases: str) -> str:
    """Return a regular expression that matches any of these phrases, with or without common trailing words."""
    return f"(?:{'|'.join(phrases)}){_TAIL}"


ABILITIES: tuple[GuideAbility, ...] = (
    GuideAbility(_GREETING, HELLO, "hello", "where to begin"),
    GuideAbility(r"(?:i need (?:some )?)?help(?: me)?|\?", show_help, "help", "this list"),
    GuideAbility(
        build_phrase_pattern(
            "(?:who|what) (?:exactly )?(?:are|r) (?:you|u)",
            "are you .+",
            "who am i (?:talking|speaking|writing) (?:to|with)",
            f"who{_S} (?:this|that|there)",
            f"what{_S} your name",
            "(?:introduce|describe|tell me about) yourself",
        ),
        WHO_I_AM,
        "who are you",
        "what I am and am not",
    ),
    GuideAbility(
        build_phrase_pattern(
            f"what (?:else )?{_DO} (?:you|u|i|we) (?:do|say|try|ask|know|answer|understand|help)(?: me| you)?",
            "what are you (?:able to do|good at|for)",
            "what are your (?:commands|skills|abilities)",
            "show me (?:something|what you (?:can )?do)(?: cool| nice| interesting)?",
        ),
        WHAT_I_DO,
        "what can you do",
        "things to try",
    ),
    GuideAbility(
        build_phrase_pattern(
            f"what{_S} (?:all )?(?:this|that|it|retinue)(?: all)?(?: for)?",
            f"what{_S} this (?:place|thing|app|page|site|program|server)",
            "what does (?:this|it|retinue) do",
            "where am i",
        ),
        WHAT_THIS_IS,
        "what is this",
        "what retinue is",
    ),
    GuideAbility(
        build_phrase_pattern(
            f"(?:how|where) (?:{_DO} (?:i|we)|to) (?:get )?(?:start(?:ed)?|begin)",
            f"how (?:{_DO} (?:i|we)|to) use (?:this|it|retinue|you)",
            "(?:help me )?(?:get(?:ting)? )started",
            "help me (?:start|begin)",
            r"i(?: a|['\u2019])?m new",
            f"what{_S} next",
            "what now",
            "first steps",
        ),
        FIRST_STEPS,
        "how do I start",
        "three first steps",
    ),
    GuideAbility(
        build_phrase_pattern("how do(?:es)? (?:it|this|the server|retinue|you) work", "tour"),
        HOW_IT_WORKS,
        "how does it work",
        "how the server works, in five sentences",
    ),
    GuideAbility(f"count(?: up)?(?: to)?{_N}", count, "count to 50", "a long answer, streamed word by word"),
    GuideAbility(f"think(?: about| of)?{_REST}", think, "think about tea", "thinking, separate from the answer"),
    GuideAbility(f"(?:be )?slow(?: for)?{_N}(?:s| seconds?)?", be_slow, "slow 10", "an answer after ten seconds"),
    GuideAbility("(?:be |stay )?(?:silent|quiet)|say nothing", "", "be silent", "no answer, on purpose"),
    GuideAbility(
        "fail(?: now)?",
        lambda _, __: GuideScript(text="I start, and", should_fail=True),
        "fail",
        "a model that fails",
    ),
    GuideAbility(
        f"(?:echo|repeat|say):?{_REST}", lambda rest, _: GuideScript(text=rest), "echo good day", "your text again"
    ),
    GuideAbility("what did i (?:say|write)(?: before| earlier)?", remember),
    GuideAbility(f"remember(?: that)?{_REST}", remember, "remember", "your earlier messages in this session"),
    GuideAbility("(?:list |show )?(?:your )?tools", list_tools, "tools", "the tools I can use"),
    GuideAbility(
        "(?:session[ _])?status",
        lambda _, p: call_tools("session_status", p),
        "status",
        "the status of this session, by a tool call",
    ),
    GuideAbility(
        f"read{_REST}",
        lambda rest, p: call_tools(f"read {rest.rstrip('.?!')}", p),
        "read SOUL.md",
        "a file of the agent directory, by a tool call",
    ),
    GuideAbility(
        f"call{_REST}", call_tools, 'call session_status; read {"path": "SOUL.md"}', "any tool calls, several at once"
    ),
    GuideAbility(
        f"ask(?: me)?(?: for)?{_REST}", call_with_approval, "ask read SOUL.md", "a call that may need your approval"
    ),
    GuideAbility("thanks?|thank you", "You are welcome."),
    GuideAbility(
        r"(?P<rest>\S+ (?:allowed|denied) .+ \(approval \w+\))", lambda rest, _: GuideScript(text=f"I see: {rest}.")
    ),
    GuideAbility(
        ".*(?:real|other) models?.*|.*(?:api|openai|anthropic|claude|google|gemini) key.*|connect.*",
        A_REAL_MODEL,
        "connect a real model",
        "how to add a key, or your own model",
    ),
)
