"""Operations on schedules, heartbeats, reminders and wake-ups."""
