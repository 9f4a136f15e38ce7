"""What a run folder tells: its history in numbers, pictures and a page."""
