"""Arguments, results and wrapped tensors, flattened and rebuilt."""
