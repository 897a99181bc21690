"""The Loader: order, resume, and the engines that make its batches."""
