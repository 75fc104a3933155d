"""`make injection`: a published suite of attacks against the real toolbox and provenance rules, without a model."""
