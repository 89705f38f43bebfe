{{- define "nonet.selector" -}}
app.kubernetes.io/name: nonet
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "nonet.labels" -}}
{{ include "nonet.selector" . }}
app.kubernetes.io/part-of: nonet
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "nonet.name" -}}
{{- if contains "nonet" .Release.Name }}{{ .Release.Name | trunc 50 }}{{ else }}{{ .Release.Name | trunc 44 }}-nonet{{ end }}
{{- end }}
