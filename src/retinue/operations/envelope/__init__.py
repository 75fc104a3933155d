"""Operations on envelopes, the inbox, lanes and uploads."""
