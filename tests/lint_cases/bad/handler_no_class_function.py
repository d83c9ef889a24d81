# expect: handler-no-class:1
def predict(data):
    return data
