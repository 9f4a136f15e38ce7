"""Checkpoints: `catalog` finds and verifies them (no torch), `writer` saves, `loader` reads, `state` says what is kept."""
