"""Move a GPU codebase to IPUs: read it (`check`) and rewrite it (`migrate`), in both cases without running it."""
