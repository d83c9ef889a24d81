# expect: handler-syntax:2
def broken(:
    pass
