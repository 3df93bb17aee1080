"""What a fit returns: frozen results by kind, and the maps that they apply to blocks of rows."""
