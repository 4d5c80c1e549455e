// A target must have a source; brigade_torch_headers is only its precompiled header.
