"""Time, as just another sender."""
