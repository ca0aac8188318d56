// A precompiled header needs a target that owns it, and a target needs a source.
