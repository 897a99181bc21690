"""What a person sees of a run: its line, its log and picture, and where the time of a step goes."""
