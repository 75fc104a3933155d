"""The offline guide: a scripted model, so that every part of the server can be tried without a key or network.

It looks up what it has read since its last reply in a table, and plays the script found there. The
same prompt always gives the same reply.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from functools import reduce
from itertools import islice, takewhile
from typing import Any

from msgspec import Struct

from retinue.domain.model import FREE, Failure, ModelFacts, ModelFailed, ModelRef
from retinue.domain.ports import Clock
from retinue.domain.record import NO_USAGE, Note, Record, RecordKind, Stop, UserTurn
from retinue.domain.structs import replace
from retinue.domain.tool import Call, ToolResult, ToolSpec
from retinue.models.base import Asks, Chunk, Ended, Prompt, Text, Thinking

PAUSE_S = 0.03
COUNT_MAX = 1000
SLOW_S_MAX = 600.0
CALLS_MAX = 10
PIECES_MAX = 2000
RECALLED_MAX = 5
SHOWN_CHARS_MAX = 2000

_SILENCE = "NO_REPLY"  # a reply of only this is recorded and not sent


class Script(Struct, frozen=True, kw_only=True):
    """What to do in one reply, in the order of these fields. An empty script is silence."""

    after_s: float = 0.0
    thinking: str = ""
    text: str = ""
    fails: bool = False
    calls: tuple[Call, ...] = ()
    pace: float = 1.0

    def then(self, other: Script) -> Script:
        return Script(
            after_s=self.after_s + other.after_s,
            thinking="\n\n".join(filter(None, (self.thinking, other.thinking))),
            text="\n\n".join(filter(None, (self.text, other.text))),
            fails=self.fails or other.fails,
            calls=self.calls + other.calls,
            pace=max(self.pace, other.pace),
        )


class Guide(Struct, frozen=True):
    """Plays the script for the prompt, word by word, at its pace."""

    clock: Clock
    pause_s: float = PAUSE_S
    name: str = "guide"

    @property
    def facts(self) -> ModelFacts:
        return ModelFacts(ref=ModelRef("", self.name), price=FREE)

    async def reply(self, prompt: Prompt, *, key: str = "") -> AsyncIterator[Chunk]:
        script = script_for(prompt)
        if script.after_s:
            await self.clock.sleep(script.after_s)
        for piece in pieces(script.thinking):
            yield Thinking(piece)
            await self.clock.sleep(self.pause_s)
        for piece in pieces(script.text or ("" if script.calls else _SILENCE)):
            yield Text(piece)
            await self.clock.sleep(self.pause_s * script.pace)
        if script.fails:
            raise ModelFailed(
                "the guide broke off, as it was asked to",
                because="`fail` shows what becomes of your envelope when a model fails",
                try_this="say something else: the conversation goes on",
                code="model.asked-to-fail",
                failure=Failure.BAD_REQUEST,  # a retry would not help
            )
        for number, call in enumerate(script.calls, start=1):
            yield Asks(replace(call, id=f"call-{number}"))
        yield Ended(Stop.CALLS if script.calls else Stop.END, NO_USAGE)


def pieces(text: str) -> list[str]:
    """Split into words, each with its trailing space; several words per piece if there are very many."""
    words = re.findall(r"\S+\s*|\s+", text)
    together = -(-len(words) // PIECES_MAX) or 1
    return ["".join(words[i : i + together]) for i in range(0, len(words), together)]


def script_for(prompt: Prompt) -> Script:
    """Build one script that answers everything this run has read since the last reply, in order."""
    scripts = (script for record in _unanswered(prompt.records) for script in _reactions(record, prompt))
    return reduce(Script.then, scripts, Script())


def _unanswered(records: Sequence[Record]) -> list[Record]:
    # From the end, so that the cost depends on the run, not on the history before it.
    run = records[-1].run if records else None
    return list(takewhile(lambda r: r.run == run and r.kind is not RecordKind.ASSISTANT, reversed(records)))[::-1]


def _reactions(record: Record, prompt: Prompt) -> Iterator[Script]:
    match record.body:
        case UserTurn(text=text):
            yield from (hear(letter, prompt) for letter in letters(text))
        case ToolResult() as result:
            yield Script(text=read_back(result))
        case Note(text=text, call=call) if call:
            yield Script(text=_cut(text))
        case _:
            return


def read_back(result: ToolResult) -> str:
    """Describe the result of a call.

    One that waits, was refused or interrupted must not read like one that was done.
    """
    tool, output = f"`{result.tool}`", result.output.strip()
    if not result.failed:
        return f"{tool} says:\n{_cut(output)}" if output else f"{tool} came back with nothing in it."
    if waits := re.match(r"Waiting for approval (\w+)", output):
        return f"{tool} is not done yet: it waits for approval {waits[1]}. I go on without it until someone decides."
    if refused := re.match(r"Not done: the approval (\w+) is (\w+)", output):
        return f"{tool} was not done: approval {refused[1]} is {refused[2]}."
    if output.startswith("Interrupted:"):
        return f"{tool} was interrupted, and may or may not have taken effect. I do not repeat it: please look first."
    return f"{tool} did not work: {_cut(output)}"


_RULE = re.compile(r"^---$", re.MULTILINE)  # senders cannot write this or the tags: `runners/turn_input` escapes them
_AROUND = re.compile(r'\A(?:<context [^\n]*\n|<system_message origin="[^"]*">)|</system_message>\Z')
_COURTESY = re.compile(r"(?:(?:please|kindly|guide|(?:can|could|would|will)\s+you)\b[\s,:]*)*", re.IGNORECASE)
_GREETING = r"(?:hello|hi|hiya|hey|howdy|greetings|good (?:morning|day|afternoon|evening))(?: there| guide| all)?"
_GREETED = re.compile(r"(?:" + _GREETING.replace(" ", r"\s+") + r"\b[\s,.:;!?-]*)+", re.IGNORECASE)


def letters(turn: str) -> list[str]:
    """Return the text of each envelope in a turn, oldest first. A text that is not a turn is returned unchanged."""
    head, *blocks = _RULE.split(turn)
    bodies = [block.strip("\n").partition("\n\n")[2] for block in blocks[:-1]]
    found = [body for body in bodies if body and head.startswith("## Turn Context")] or [turn]
    return [_AROUND.sub("", body.partition("\n\nattachments:\n")[0].strip()).strip() for body in found]


def hear(words: str, prompt: Prompt) -> Script:
    """Answer with the first ability that matches the request."""
    for request in _readings(words):
        for ability in ABILITIES:
            if (rest := ability.heard(request)) is not None:
                return Script(text=ability.does) if isinstance(ability.does, str) else ability.does(rest, prompt)
    return puzzled(words)


def _readings(words: str) -> Iterator[str]:
    """Yield the request unchanged, so that a command keeps its meaning; then without its greeting."""
    request = _COURTESY.sub("", words, count=1)
    yield request
    if greeted := _GREETED.match(request):
        yield _COURTESY.sub("", request[greeted.end() :], count=1) or "hello"


# The actions of the table: a text, or a pure function of the text after the command and of the prompt.

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
    f"{ADD_A_KEY} In the web app: House, Models, Add a key. Any server that speaks the OpenAI protocol works too: name "
    "it in `retinue.toml`, as docs/guides/choose-models.md shows. `retinue models` lists which model each agent uses. "
    "I stay a script."
)
HELLO = f"Hello! {I_AM} The server around me is real.\n\n{TRY_THIS}\n\n{ADD_A_KEY}"
WHO_I_AM = (
    f"{I_AM} I need no key and no network: my answers were written in advance, and I answer a fixed list of commands. "
    f"The server around me is real.\n\n{TRY_THIS}\n\n{ADD_A_KEY}"
)
WHAT_I_DO = (
    f"{I_AM} I answer a fixed list of commands, so that you can see what the server does: long answers, tool calls, "
    f"questions that wait for you, failures and restarts.\n\n{TRY_THIS}\n\n{ADD_A_KEY}"
)
WHAT_THIS_IS = (
    "This is retinue, a server for a team of AI agents. You write to an agent; each message is stored before it is "
    f"accepted, and each step before it is taken, so a restart loses nothing. {I_AM}\n\n{TRY_THIS}\n\n{ADD_A_KEY}"
)
FIRST_STEPS = (
    f"{I_AM} Three first steps:\n\n"
    "1. See what the server does: say `count to 20`, `status` or `how does it work`.\n"
    f"2. {ADD_A_KEY}\n"
    "3. Create an agent of your own: `retinue agent register ada`, then `retinue chat --agent ada`.\n\n"
    "The page docs/start.md walks you through the first ten minutes."
)
HOW_IT_WORKS = (
    "What you write is stored as an envelope before the server accepts it. An agent works through its envelopes in "
    "runs, and each step is stored before it is taken. So say `count to 100`, kill the server in the middle and start "
    "it again: you get your answer, once. A tool call that must not be repeated is not repeated; I say that it was "
    "interrupted. What an agent may not do alone, it asks a person first, and the question survives a restart too."
)


def show_help(_rest: str, _prompt: Prompt) -> Script:
    lines = (f"- `{ability.example}`: {ability.shows}" for ability in ABILITIES if ability.example)
    return Script(text="\n".join((f"{I_AM} This is what I understand:", *lines, "", ADD_A_KEY)))


def puzzled(words: str) -> Script:
    said = _cut(" ".join(words[:200].split()), 60)
    start = f"I do not know how to answer “{said}”." if said and said != "(none)" else "I found no words to read."
    then = "Try `count to 20`, `status` or `how does it work`; `help` lists the rest."
    return Script(text=f"{start} {I_AM} {then} To get real answers, say `connect a real model`.")


def count(rest: str, _prompt: Prompt) -> Script:
    wanted = int(float(rest[:9] or "20"))
    end = "Done." if wanted <= COUNT_MAX else f"I stop here: {COUNT_MAX} is as far as I count."
    numbers = map(str, range(1, min(wanted, COUNT_MAX) + 1))
    return Script(text=" ".join((*numbers, end)), pace=5.0)  # slowly, so that it can be interrupted


def be_slow(rest: str, _prompt: Prompt) -> Script:
    after_s = min(float(rest[:9] or "10"), SLOW_S_MAX)
    bound = ", which is as long as I ever wait" if after_s == SLOW_S_MAX else ""
    return Script(after_s=after_s, text=f"I waited {after_s:g} seconds before I said this{bound}.")


def think(rest: str, _prompt: Prompt) -> Script:
    about = _cut(rest, 200) or "nothing in particular"
    thinking = f"I am to think about {about}. I am a script, so these thoughts were written before you asked."
    return Script(thinking=thinking, text=f"I thought about {about}. My thoughts came beside this answer, not in it.")


def remember(rest: str, prompt: Prompt) -> Script:
    if rest:
        return Script(text="It is written down in this session. Ask me for it: `what did I say?`")
    earlier = islice(reversed(prompt.records), len(_unanswered(prompt.records)), None)
    words = (said for r in earlier if isinstance(r.body, UserTurn) for said in reversed(letters(r.body.text)))
    lines = [f"- {_cut(' '.join(said.split()), 100)}" for said in islice(words, RECALLED_MAX)][::-1]
    start = "This is what I read before:" if lines else "I read nothing before, since we began or were reset."
    return Script(text="\n".join((start, *lines)))


def list_tools(_rest: str, prompt: Prompt) -> Script:
    lines = [f"- `{tool.name}`: {tool.description}" for tool in prompt.tools]
    return Script(text="\n".join(("I may use these tools:", *lines)) if lines else "No tool is offered to me here.")


def use(rest: str, prompt: Prompt) -> Script:
    try:
        calls = calls_in(rest, prompt.tools)
    except (ValueError, RecursionError):
        return Script(text='I cannot make out the arguments. Write them so: `call read {"path": "SOUL.md"}`.')
    return Script(text=f"I call {' and '.join(f'`{call.tool}`' for call in calls)}.", calls=tuple(calls))


def ask_first(rest: str, prompt: Prompt) -> Script:
    script = use(rest or "read SOUL.md", prompt)
    whether = "Where this agent's rules say `ask`, a person is asked first; where they say `allow`, it is simply done."
    return replace(script, text=f"{script.text} {whether}") if script.calls else script


_NAMED = re.compile(r"(?:[\s,;]|(?:and|then|call)\b)*([\w.-]{1,64})[ \t]*", re.IGNORECASE)
_JOINT = re.compile(r"[,;\n]|(?:and|then)\b|$", re.IGNORECASE)


def calls_in(words: str, tools: Sequence[ToolSpec]) -> list[Call]:
    """Parse `a {...}; b plain words; c and d` into calls. Raises `ValueError` if that is not possible."""
    needed = {tool.name: tool.parameters.get("required", []) for tool in tools}
    calls: list[Call] = []
    at = 0
    while len(calls) < CALLS_MAX and (named := _NAMED.match(words, at)):
        tool, at = named[1], named.end()
        arguments: dict[str, Any] = {}
        if words.startswith("{", at):
            arguments, at = json.JSONDecoder().raw_decode(words, at)
            json.dumps(arguments, ensure_ascii=False, allow_nan=False).encode()  # rejects NaN and lone surrogates
        elif not _JOINT.match(words, at):
            said = re.split(r"[;\n]", words[at:], maxsplit=1)[0]
            at += len(said)
            if len(names := needed.get(tool, [])) == 1:  # plain words are the value of the only required parameter
                arguments = {names[0]: said.strip()}
        calls.append(Call(id="", tool=tool, arguments=arguments))
    if not calls:
        raise ValueError("no tool is named")
    return calls


def _cut(text: str, chars_max: int = SHOWN_CHARS_MAX) -> str:
    return text if len(text) <= chars_max else f"{text[:chars_max]}…"


class Ability(Struct, frozen=True):
    """A pattern, the action for it, and its entry in the help; without an example it is not listed."""

    asked: str
    does: str | Callable[[str, Prompt], Script]
    example: str = ""
    shows: str = ""

    def heard(self, words: str) -> str | None:
        """Return the text after the command; None if it does not match.

        Spaces, case and a final `please` are ignored.
        """
        asked = self.asked.replace(" ", r"\s+")
        found = re.fullmatch(rf"(?:{asked})(?:[\s,]+please)?[\s.!?]*", words, re.IGNORECASE | re.DOTALL)
        return (found.groupdict().get("rest") or "").strip() if found else None


# Before `[\s.!?]*`, a repeated part must not match these signs too: long inputs would take quadratic time.
_N = r"(?: (?P<rest>\d+(?:\.\d+)?))?"
_REST = "(?: (?P<rest>.+))?"
_S = "(?: is|['\u2019]?s)"
_DO = "(?:do|can|could|should|would|must)"
_TAIL = "(?:,? (?:here|now|today|then|first|next|exactly|actually|anyway|about|for me|with (?:this|you|it|retinue)))*"


def any_of(*phrases: str) -> str:
    """Return a pattern for one of these phrases, with or without common trailing words."""
    return f"(?:{'|'.join(phrases)}){_TAIL}"


ABILITIES: tuple[Ability, ...] = (
    Ability(_GREETING, HELLO, "hello", "where to begin"),
    Ability(r"(?:i need (?:some )?)?help(?: me)?|\?", show_help, "help", "this list"),
    Ability(
        any_of(
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
    Ability(
        any_of(
            f"what (?:else )?{_DO} (?:you|u|i|we) (?:do|say|try|ask|know|answer|understand|help)(?: me| you)?",
            "what are you (?:able to do|good at|for)",
            "what are your (?:commands|skills|abilities)",
            "show me (?:something|what you (?:can )?do)(?: cool| nice| interesting)?",
        ),
        WHAT_I_DO,
        "what can you do",
        "what there is to try",
    ),
    Ability(
        any_of(
            f"what{_S} (?:all )?(?:this|that|it|retinue)(?: all)?(?: for)?",
            f"what{_S} this (?:place|thing|app|page|site|program|server)",
            "what does (?:this|it|retinue) do",
            "where am i",
        ),
        WHAT_THIS_IS,
        "what is this",
        "what retinue is",
    ),
    Ability(
        any_of(
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
    Ability(
        any_of("how do(?:es)? (?:it|this|the house|the server|retinue|you) work", "tour"),
        HOW_IT_WORKS,
        "how does it work",
        "the server in five sentences",
    ),
    Ability(f"count(?: up)?(?: to)?{_N}", count, "count to 50", "a long answer, to be interrupted as you like"),
    Ability(f"think(?: about| of)?{_REST}", think, "think about tea", "thoughts beside the answer"),
    Ability(f"(?:be )?slow(?: for)?{_N}(?:s| seconds?)?", be_slow, "slow 10", "an answer after ten seconds"),
    Ability("(?:be |stay )?(?:silent|quiet)|say nothing", "", "be silent", "no answer, on purpose"),
    Ability("fail(?: now)?", lambda _, __: Script(text="I begin, and", fails=True), "fail", "a model that breaks off"),
    Ability(f"(?:echo|repeat|say):?{_REST}", lambda rest, _: Script(text=rest), "echo good day", "your words again"),
    Ability("what did i (?:say|write)(?: before| earlier)?", remember),
    Ability(f"remember(?: that)?{_REST}", remember, "remember", "what I read earlier in this session"),
    Ability("(?:list |show )?(?:your )?tools", list_tools, "tools", "the tools I may use"),
    Ability("(?:session[ _])?status", lambda _, p: use("session_status", p), "status", "where we are, by a tool call"),
    Ability(f"read{_REST}", lambda rest, p: use(f"read {rest.rstrip('.?!')}", p), "read SOUL.md", "a file of my home"),
    Ability(f"call{_REST}", use, 'call session_status; read {"path": "SOUL.md"}', "any tools, several at once"),
    Ability(f"ask(?: me)?(?: for)?{_REST}", ask_first, "ask read SOUL.md", "a call to be allowed by a person first"),
    Ability("thanks?|thank you", "You are welcome."),
    Ability(r"(?P<rest>\S+ (?:allowed|denied) .+ \(approval \w+\))", lambda rest, _: Script(text=f"I see: {rest}.")),
    Ability(
        ".*(?:real|other) models?.*|.*(?:api|openai|anthropic|claude|google|gemini) key.*|connect.*",
        A_REAL_MODEL,
        "connect a real model",
        "how that is done",
    ),
)
