"""What replies: small protocols over whoever sells the words."""
