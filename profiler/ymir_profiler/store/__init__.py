"""The profile store: every measurement once, in SQLite or PostgreSQL."""
