"""Checkpoints: `catalog` finds and verifies (no torch), `writer` saves, `loader` reads, `state` says what is kept."""
