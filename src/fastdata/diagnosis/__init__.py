"""Why a training loop is slow: measures the loader and the step, each alone and then together."""
