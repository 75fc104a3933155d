"""`make injection`: a published suite of attacks, through the house's own toolbox and rules, without a model."""
