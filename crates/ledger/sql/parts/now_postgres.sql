now()
