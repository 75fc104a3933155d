"""Errors of the questionnaire operations."""

from __future__ import annotations

from retinue.domain.errors import Conflict, NotFound


class QuestionnaireNotFound(NotFound):
    """No questionnaire has this id, or the caller may not see it."""

    code = "questionnaire.not_found"

    def __init__(self, id_: str) -> None:
        super().__init__(
            f"no questionnaire has the id {id_}", try_this="list the questionnaires: retinue questionnaire list"
        )


class QuestionnaireAmbiguous(Conflict):
    """A short id matches several questionnaires."""

    code = "questionnaire.ambiguous"

    def __init__(self, id_: str) -> None:
        super().__init__(
            f"several questionnaires match {id_}",
            because="their ids begin with the same digits",
            try_this="give more digits of the id",
        )
