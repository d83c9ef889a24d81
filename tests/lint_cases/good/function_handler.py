model = None


def entry_point_function_name(data, context):
    return handle(data, context)


def handle(data, context):
    global model
    if not data:
        model = str.upper
    else:
        return [model(row["body"].decode()) for row in data]
