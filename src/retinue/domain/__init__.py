"""Pure domain types. Modules here import only each other, never another package of retinue."""
