{{- define "nllb-fleet.name" -}}
{{- if contains "nllb-fleet" .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-nllb-fleet" .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "nllb-fleet.selector" -}}
app.kubernetes.io/name: nllb-fleet-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "nllb-fleet.labels" -}}
{{ include "nllb-fleet.selector" . }}
app.kubernetes.io/component: operator
app.kubernetes.io/part-of: nllb-fleet
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}
