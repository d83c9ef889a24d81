# expect: handler-function-none:2
def handle(data, context):
    return [len(row["body"]) for row in data]
