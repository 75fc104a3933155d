"""An agent that runs elsewhere: its mail goes out signed, its answers come back signed, each once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from flows.far_side import far_side, house_with

from retinue.domain.envelope import Kind
from retinue.domain.trust import Trust


@pytest.mark.spec("A33", "A34")
async def test_mail_is_handed_out_signed_and_the_answer_goes_to_whoever_asked(tmp_path: Path) -> None:
    async with far_side() as far, house_with(tmp_path, far) as house:
        receipt = await house.post("What is new?", to="agent:rex")
        letter = await far.letter()
        assert letter.is_signed
        body = letter.json
        assert body["sessionId"] == receipt.session
        assert body["agentId"] == "rex"
        assert body["callbackUrl"].endswith(f"/external/sessions/{receipt.session}/messages")
        assert body["message"]["type"] == "user"
        assert body["message"]["text"] == "What is new?"
        assert body["message"]["createdAt"]
        said = await far.answer(letter, "Nothing, **really**.")
        assert said.status == 200
        assert said.body["answers"] == letter.id
        await house.rest()
        answers = await house.mail("person:owner")
        assert [(mail.text, mail.kind, mail.trust) for mail in answers] == [
            ("Nothing, **really**.", Kind.ANSWER, Trust.UNTRUSTED)
        ]
        print(json.dumps(body))
