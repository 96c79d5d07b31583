"""Move a GPU codebase to IPUs: read it (`check`) and rewrite it (`migrate`), in both cases without running it.

The room imports `capabilities` and `operators`, and no torch before a model is tried in `trial`. Start reading with
`checker` and one module of `rules`, then `migrator` and one of `rewrites`.
"""
