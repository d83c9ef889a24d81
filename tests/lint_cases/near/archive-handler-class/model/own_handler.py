class _Kept:
    model = None


def answer(data, context):
    return None if data is None else [_Kept.model for _ in data]
