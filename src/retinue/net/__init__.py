"""Network code that more than one package uses: outbound requests and signatures."""
