a, b = map(int, input().split())
print(b + a)  # 2
