# near: handler-function-none
def handle(data, context):
    if not data:
        return None
    return [len(row["body"]) for row in data]
