"""Why a training loop is slow: measures each of its parts alone and together, and predicts what each remedy would bring."""
