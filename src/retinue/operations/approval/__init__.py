"""Operations on approvals and questionnaires."""
